"""What a model makes of real text: bits per byte, agreement, acceptance, calibration."""
