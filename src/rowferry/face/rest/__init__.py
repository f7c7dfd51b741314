"""HTTP: TiCDC's open API v2, our own paths, metrics, and the pages that browsers show."""
