# The explorer on port 8050, or any other command:
#
#     docker build --tag ladder-sim .
#     docker run --rm --publish 127.0.0.1:8050:8050 ladder-sim
#     docker run --rm ladder-sim predict --model 405b --nodes 2
FROM docker.io/library/python:3.13.9-slim-trixie AS build
WORKDIR /src
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY ladder_sim ladder_sim
COPY runtime runtime
COPY calibration calibration
RUN python -m venv /opt/ladder-sim \
    && /opt/ladder-sim/bin/pip install --no-cache-dir --constraint constraints.txt . \
    && /opt/ladder-sim/bin/pip uninstall --yes pip

FROM docker.io/library/python:3.13.9-slim-trixie
COPY --from=build /opt/ladder-sim /opt/ladder-sim
RUN useradd --create-home --home-dir /var/lib/ladder --uid 10001 ladder
# a number, so that an orchestrator can see that it is not root
USER 10001
WORKDIR /var/lib/ladder
ENV PATH=/opt/ladder-sim/bin:$PATH PYTHONUNBUFFERED=1
EXPOSE 8050
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8050/', timeout=4)"]
ENTRYPOINT ["ladder-sim"]
CMD ["explore", "--host", "0.0.0.0", "--no-open"]
