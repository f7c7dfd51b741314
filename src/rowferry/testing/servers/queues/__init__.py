"""Queueing services: Redis, NATS, RabbitMQ, and Amazon's as moto has them."""
