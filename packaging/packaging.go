// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package packaging is how the suite comes onto a node, and how a fleet of nodes is
// watched. It has no code but its tests; the files beside it are
//
//	package          builds .deb, .rpm and .tar.gz, an SBOM, and checksums: make package
//	nfpm.yaml        what is in a .deb and an .rpm
//	*.sh             what they do when they come and go
//	cloud-init.yaml  an example of user data that makes an instance a node
//	alerts.yaml      rules for Prometheus over what cni-ipvlan-vpc-k8s-tool metrics writes
//	dashboard.json   the same for the eye, in Grafana
//
// A package installs its units and enables none: a node without a conflist has no use
// for them, and the conflist is the operator's, who copies it last. Removed, it leaves
// nothing but the state in /run, which pods need for as long as they run.
package packaging
