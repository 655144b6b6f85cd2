"""One question a file: zoos to a frozen result that can print, plot and serialise itself."""
