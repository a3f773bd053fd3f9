"""The values that capture writes and judges read: standard library only, frozen, without behaviour beyond derived facts."""
