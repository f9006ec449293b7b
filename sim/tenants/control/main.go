// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command control is a control server of Tailscale, from the tests of Tailscale's own module. Every node may join its
// network. A node gets an address of 100.64.0.0/10, as from the public server.
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
