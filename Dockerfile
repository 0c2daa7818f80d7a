# The image of a driver: `brew-pipeline` by default, the other three programs by `--entrypoint`.
#   docker build --tag brew .          (make image does it)
#   docker run --rm --network host brew run --master 'local[*]' --bootstrap localhost:9092

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY brew ./brew
COPY pipeline ./pipeline
COPY operations ./operations
COPY downstream ./downstream
COPY proof ./proof
COPY sandbox ./sandbox
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.11-slim-bookworm
# tini: the first process of a container has to pass signals on and to bury orphans; Python does neither.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless tini \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/constraints.txt
COPY --from=build /wheel /tmp/wheel
RUN pip install --no-cache-dir --constraint /tmp/constraints.txt /tmp/wheel/*.whl && rm -rf /tmp/wheel /tmp/constraints.txt
# The connector's jars are compared with the checksums of this version; a build with others fails here.
ENV BREW_JVM_DIR=/opt/brew/jvm
RUN brew-pipeline setup
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin brew
USER 10001
WORKDIR /home/brew
# Whoever asks a container for its health comes from outside of it; the drain of a backlog answers, too.
ENV PROBE_HOST=0.0.0.0 \
    PROBE_PORT=3000
EXPOSE 3000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['PROBE_PORT'] + '/livez', timeout=4)"]
ENTRYPOINT ["tini", "--", "brew-pipeline"]
CMD ["--help"]
