# The sandbox: `docker compose up`, or `docker build -t mobilemoney-sandbox .`
# Pinned, as pip is: Dependabot raises both.
FROM python:3.13.9-slim-trixie AS build
COPY pyproject.toml hatch_build.py README.md LICENSE sbom.cdx.json _mobilemoney_pytest.py /src/
COPY mobilemoney_async /src/mobilemoney_async
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir pip==26.3 \
    && /venv/bin/pip install --no-cache-dir "/src[cli,sandbox]"

FROM python:3.13.9-slim-trixie
COPY --from=build /venv /venv
USER 65534
EXPOSE 8765
HEALTHCHECK --interval=10s --start-period=10s \
    CMD ["/venv/bin/python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8765/openapi.json')"]
# Within the container. Publish the port on loopback: the sandbox's token is public.
ENTRYPOINT ["/venv/bin/mobilemoney", "sandbox", "--host", "0.0.0.0"]
