# tracekit without anything else: docker run --rm -v "$PWD:/data:ro" tracekit analyze /data/outputs/profile
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN python -m venv /opt/tracekit && /opt/tracekit/bin/pip install --no-cache-dir '.[plots,parquet]'

FROM python:3.13-slim
COPY --from=build /opt/tracekit /opt/tracekit
RUN useradd --create-home --uid 1000 reader
USER reader
WORKDIR /data
ENV PATH=/opt/tracekit/bin:$PATH
ENTRYPOINT ["tracekit"]
CMD ["--help"]
