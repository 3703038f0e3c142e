"""Tables with columns of any kind: read, turned into numbers, predicted from."""
