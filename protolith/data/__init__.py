"""Domains, sources of images, protocols and augmentation."""
