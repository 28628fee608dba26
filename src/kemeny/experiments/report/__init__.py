"""One page about many runs, that needs no network: `page` writes it, `contents` says what is in it."""
