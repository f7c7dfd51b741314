"""How people reach the control plane: parse, call one use case, render. No SQL, no Spark."""
