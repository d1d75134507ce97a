"""What happens to one variant inside a worker."""
