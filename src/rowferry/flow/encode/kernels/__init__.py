"""Compiled writers and readers that text codecs share."""
