"""The paper's figures and tables as data: which runs each needs at which scale, and how it is drawn from them."""
