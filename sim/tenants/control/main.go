// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command control is a server that manages the nodes of a Tailscale network in tests. Tailscale calls such a server a
// control server. The command uses the test code of Tailscale. Every node may join the network. Like Tailscale's public
// server, the command gives each node an address of 100.64.0.0/10.
//
// usage: control ADDRESS:PORT
package main

import (
	"log"
	"net/http"
	"os"

	"tailscale.com/tailcfg"
	"tailscale.com/tstest/integration/testcontrol"
)

func main() {
	at := os.Args[1]
	log.Fatal(http.ListenAndServe(at, &testcontrol.Server{ExplicitBaseURL: "http://" + at, DERPMap: &tailcfg.DERPMap{}}))
}
