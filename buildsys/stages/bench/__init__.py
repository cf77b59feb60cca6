"""What a benchmark times, and how its figures come about: engines in this process or another, and their baselines."""
