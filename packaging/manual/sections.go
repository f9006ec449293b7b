// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

//go:build !urfave_cli_no_docs

package main

// sections has the sections that the library's page lacks, in the format of man(7).
const sections = `
.SH EXIT STATUS
.TP
\fB0\fP
The command has done its work.
.TP
\fB1\fP
An error. Also: \fBdoctor\fP finds an error and does not repair it, \fBvalidate\fP finds a mistake, or \fBstatus \-\-diff\fP finds a disagreement.
.TP
\fB3\fP
There is no such command.
.SH FILES
.TP
\fI/etc/cni/net.d\fP
Where the commands look for conflists.
.TP
\fI/opt/cni/bin\fP
The plugins.
.TP
\fI/run/cni\-ipvlan\-vpc\-k8s/registry.json\fP
What the processes of the node know of the node's ENIs, addresses and leases. An operator may delete this file. The directory also has the locks.
.TP
\fI/etc/cni\-ipvlan\-vpc\-k8s.env\fP
Variables for the units of systemd.
.SH ENVIRONMENT
.TP
\fBAWS_REGION\fP, \fBAWS_ACCESS_KEY_ID\fP, \fBAWS_SECRET_ACCESS_KEY\fP, \fBAWS_SESSION_TOKEN\fP
For commands that do not run on an EC2 instance.
.TP
\fBAWS_ENDPOINT_URL_EC2\fP, \fBAWS_EC2_METADATA_SERVICE_ENDPOINT\fP
Other URLs of EC2 and of the metadata service.
.TP
\fBHTTPS_PROXY\fP, \fBNO_PROXY\fP, \fBAWS_CA_BUNDLE\fP
A proxy to EC2, and certificates to trust.
.TP
\fBCNI_IPVLAN_VPC_STATE_DIR\fP
Another directory for the registry.
.SH EXAMPLES
.TP
Which pod has which address, and do registry, kernel, metadata and EC2 agree?
\fBcni\-tool status \-\-diff\fP
.TP
What breaks the pods' network on this node? Make the repairs that can do no harm:
\fBcni\-tool doctor \-\-fix\fP
.TP
Find all mistakes in a configuration, on any machine:
\fBcni\-tool validate \-\-bin\-dir= 10\-cni\-ipvlan\-vpc\-k8s.conflist\fP
.TP
Which pod had an address at a time in the past?
\fBcni\-tool whois \-\-at "2026\-11\-24 14:03" 10.0.97.30\fP
.TP
Release what has been free for a quarter of an hour, as \fIcni\-gc.timer\fP does:
\fBcni\-tool repair && cni\-tool registry\-gc \-\-free\-after=15m\fP
.SH SEE ALSO
\fBip\-link\fP(8), \fBip\-rule\fP(8), \fBnft\fP(8)
`
