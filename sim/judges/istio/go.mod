// Istio, of which a test loads the rules of a sidecar. Nothing of it is compiled.
module github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/judges/istio

go 1.26.8

require istio.io/istio v0.0.0-20260827124520-eed52ebb66ad
