# Octet in a container: for CPUs (stage cpu), and with the CUDA backend (stage cuda, which is built by default).
#
#   docker build --target cpu -t octet:cpu .
#   docker run --rm -v "$PWD:/work" octet:cpu doctor
#
#   docker build -t octet .
#   docker run --rm --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD:/work" octet doctor
#
# The image has no .git: --build-arg OCTET_COMMIT=$(git rev-parse --short=12 HEAD) tells it the commit, else it is "unknown".
# The program runs as user 1000 in /work. tini is process 1: it passes signals on and collects orphans.
# tools/try_container.py follows the steps of stage cpu in a bare Debian 12. Not run: the stages build-cuda and cuda.

FROM debian:12 AS build
WORKDIR /octet
COPY tools/packages.sh tools/packages.sh
RUN bash -c 'source tools/packages.sh && apt-get update && apt-get install -y --no-install-recommends $build_packages python3-venv'
COPY . .
ARG OCTET_COMMIT=
RUN tools/wheel.sh --cpu
RUN python3 -m venv /opt/octet && /opt/octet/bin/pip install "$(echo dist/*.whl)[parquet]"

FROM debian:12-slim AS cpu
RUN apt-get update && apt-get install -y --no-install-recommends tini libstdc++6 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/octet /opt/octet
ENV PATH=/opt/octet/bin:$PATH
WORKDIR /work
USER 1000:1000
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/octet/bin/octet"]
CMD ["--help"]

# The CUDA toolkit as NVIDIA's wheels, which are what octet[cuda] brings and nvcc. Half an hour on 8 cores.
FROM build AS build-cuda
RUN python3 -m venv /opt/toolkit && /opt/toolkit/bin/pip install nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-nvrtc==13.0.88 nvidia-cublas==13.1.0.3 \
    nvidia-cudnn-cu13==9.19.0.56 nvidia-nccl-cu13==2.28.9
ENV CUDA_HOME=/opt/toolkit/lib/python3.11/site-packages/nvidia/cu13
RUN PATH=/opt/toolkit/bin:$PATH tools/wheel.sh
RUN /opt/octet/bin/pip install --force-reinstall "$(echo dist/*.whl)[cuda,parquet]"

FROM nvidia/cuda:13.0.1-base-ubuntu24.04 AS cuda
RUN apt-get update && apt-get install -y --no-install-recommends tini libstdc++6 && rm -rf /var/lib/apt/lists/*
COPY --from=build-cuda /opt/octet /opt/octet
ENV PATH=/opt/octet/bin:$PATH
WORKDIR /work
USER 1000:1000
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/octet/bin/octet"]
CMD ["--help"]
