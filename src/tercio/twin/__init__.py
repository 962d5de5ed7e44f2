"""Pure. The second shell: the unchanged driver, core and scheduler in virtual time."""
