"""Random histories over everything: schemas, statements and faults thrown by dice, read by feeds.

In: a number for the dice, servers, sinks. Out: what a feed delivered, compared change by change
with what the database itself said after every statement. The readers here share no code with the
product.
"""
