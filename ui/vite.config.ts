import { defineConfig } from "vite";

export default defineConfig({
  // Relative links: `<base>` in the document says where the page lives, also behind a proxy.
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/tercio/web/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: false,
    target: "es2022",
    reportCompressedSize: false,
  },
});
