"""What numbers the values of scalar code may be, as integers and as floats."""
