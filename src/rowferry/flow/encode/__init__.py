"""Stage 4: how a row looks as bytes. One codec per module, encoder and decoder together."""
