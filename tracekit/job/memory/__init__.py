"""Memory of the job: trends, pools, survivors, growth and forecasts."""
