// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command control is the control server of a Tailscale network in tests: it manages the nodes. The command uses the
// test code of Tailscale. Every node may join the network. The server gives each node an address of
// 100.64.0.0/10, as Tailscale's public server does.
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
