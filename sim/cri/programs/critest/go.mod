// The tests of the Container Runtime Interface, which call a container runtime as kubelet does. They are compiled here, unchanged.
module github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cri/programs/critest

go 1.26.8

require sigs.k8s.io/cri-tools v1.37.0 // indirect
