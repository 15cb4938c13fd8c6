"""The Pipelines page in Flower. Tornado, Flower and its Celery application are imported in here only."""
