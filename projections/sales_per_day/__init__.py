"""Analytics: sales per day, a consumer of its own of what is told to others."""
