"""One module per experiment: parse the options, call the library, write the run folder."""
