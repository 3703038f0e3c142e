"""Newton on the active rows, those near a kink of the loss; the others are screened, and checked at the end."""
