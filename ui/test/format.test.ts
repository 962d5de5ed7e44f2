import { describe, expect, it, vi } from "vitest";

vi.stubGlobal("localStorage", { getItem: () => "utc", setItem: () => undefined });
const { amounts, bytes, csv, duration, instant, number, plain, quote, reach } = await import("../src/format");

describe("format", () => {
  it("writes durations in two units", () => {
    expect([5, 65, 3600, 3661, 90_000, 86_400 * 800].map(duration)).toEqual(["5s", "1m5s", "1h", "1h1m", "1d1h", "2.19y"]);
  });
  it("draws time over a minute at least", () => {
    expect(reach(1000, 1000)).toEqual([970, 1030]);
    expect(reach(1000, 1040)).toEqual([990, 1050]);
    expect(reach(1000, 5000)).toEqual([1000, 5000]);
  });
  it("writes amounts, bytes, numbers and instants", () => {
    expect(amounts({ H100: 8, A100: 0.5 })).toBe("H100:8 A100:0.5");
    expect(amounts({})).toBe("none");
    expect(bytes(80 * 1024 ** 3)).toBe("80 GiB");
    expect(number(33.3333)).toBe("33.3");
    expect(instant(0)).toBe("1970-01-01 00:00:00");
  });
  it("shows control characters and takes terminal sequences out", () => {
    expect(plain("\u001b[31mred\u001b[0m\u0007\u0000")).toBe("red␇␀");
    expect(plain("\u001b]0;title\u0007x")).toBe("x");
    expect(plain("a\u202eb")).toBe("a�b");
    expect(plain("tab\tstays <b>")).toBe("tab\tstays <b>");
  });
  it("quotes words for a shell", () => {
    expect([quote("n1"), quote("a b"), quote("it's"), quote("$(rm)")]).toEqual(["n1", "'a b'", `'it'\\''s'`, "'$(rm)'"]);
  });
  it("writes CSV that no spreadsheet runs", () => {
    expect(csv([["=1+1", 'say "x"', "-5", "a,b"]])).toBe(`'=1+1,"say ""x""",-5,"a,b"\r\n`);
  });
});
