"""storage/s3"""
