"""Steps of the job: values, kinds, steady steps, warm-up, samples and throughput."""
