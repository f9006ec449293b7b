// The program that makes the container image, with its own requirements: none of them is for what runs on a node.
module github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/packaging/image

go 1.26.0

require github.com/google/go-containerregistry v0.22.1

require (
	github.com/klauspost/compress v1.19.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	golang.org/x/sync v0.22.0 // indirect
)
