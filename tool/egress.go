// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func egressCommand() *cli.Command {
	return &cli.Command{
		Name:  "egress",
		Usage: "List the clients and routers of egresses, and the rule that their security groups need",
		Description: `It lists the egresses of the configuration, and the rule for the security groups of
clients and routers. For root, it also lists the clients and routers of this
node, and counts their packets.

--manifest prints the objects of Kubernetes for the routers of one egress:

    ` + Name + ` egress --config 10-pods.conflist --manifest partner | kubectl apply -f -

These objects are a namespace, a Service, a PodDisruptionBudget and a Deployment. With
--address, a StatefulSet for each router takes the place of the Deployment, and the
router keeps its address of the VPC. The values come from the conflist. If the conflist lacks something, comments at the
beginning of the output say what to add to the conflist. For a new egress, these
comments also have the egress itself.` +
			cli.JSON(`egresses[] {network port name gateways[] destinations[] except[] mtu namespaces[] selectable[] routers[] clients[]}
    rule {protocol port} (of the first egress)
    pods[] (of this node: role pod ip sent received refused forwarded answered)
    with --manifest: manifest (YAML) lacks[] {means lines[]}`),
		Flags: append([]cli.Flag{conf.Flag()}, egressFlags()...),
		Action: func(c *cli.Context) error {
			conflists := conf.Load(c.String("config"))
			networks, failed := conflists.Egress()
			if c.IsSet("manifest") {
				if conf.Absent(failed) { // the conflist may not have our plugins yet
					failed = nil
				}
				return errors.Join(printManifest(c, networks, conflists), failed)
			}
			if len(networks) == 0 && failed != nil {
				return failed
			}
			a := egressAnswerOf(networks)
			if os.Geteuid() == 0 {
				s, err := cli.ViewRegistry()
				if err != nil {
					return err
				}
				pods, unread := egressPods(conflists, s)
				a.Pods, failed = cli.List(pods), errors.Join(failed, unread)
			}
			return errors.Join(cli.Answer(c, a, a.print), failed)
		},
	}
}

// egressPods returns the clients and routers of this node. If the configuration has no egress, it does not look into
// the namespaces of pods.
func egressPods(conflists *conf.Conflists, s *registry.State) ([]view.EgressPod, error) {
	networks, _ := conflists.Egress() // ignore the error: the commands validate and doctor report it
	if len(networks) == 0 {
		return nil, nil
	}
	pods, err := view.EgressPods(s)
	return cli.List(pods), err
}

type egressAnswer struct {
	Egresses []egressEntry    `json:"egresses"`
	Rule     egressRule       `json:"rule"`
	Pods     []view.EgressPod `json:"pods"` // pods of this node
}

type egressEntry struct {
	Network      string   `json:"network"`
	Port         int      `json:"port"`
	Name         string   `json:"name"`
	Gateways     []string `json:"gateways"`
	Destinations []string `json:"destinations"`
	Except       []string `json:"except"`
	MTU          int      `json:"mtu"`
	Namespaces   []string `json:"namespaces"`
	Selectable   []string `json:"selectable"`
	Routers      []string `json:"routers"`
	Clients      []string `json:"clients"`
}

// An egressRule is the traffic between clients and routers. The security groups of clients and routers must allow this
// traffic in both directions.
type egressRule struct {
	Protocol string `json:"protocol"`
	Port     int    `json:"port"`
}

func egressAnswerOf(networks []conf.NetworkEgress) egressAnswer {
	a := egressAnswer{Egresses: []egressEntry{}, Rule: egressRule{"udp", egress.DefaultPort}, Pods: []view.EgressPod{}}
	for _, n := range networks {
		for _, name := range slices.Sorted(maps.Keys(n.Egresses)) {
			e := n.Egresses[name]
			a.Egresses = append(a.Egresses, egressEntry{n.List.Name, n.UDPPort(), name, cli.List(e.Gateways),
				cli.List(e.Destinations), cli.List(e.Except), e.MTU,
				cli.List(e.Namespaces), cli.List(e.Selectable), cli.List(e.Routers), cli.List(e.Clients)})
		}
	}
	if len(networks) > 0 {
		a.Rule.Port = networks[0].UDPPort()
	}
	return a
}

func (a egressAnswer) print(w io.Writer) {
	if len(a.Egresses) == 0 {
		fmt.Fprintln(w, "the configuration has no egress")
	}
	var ports []string
	for _, e := range a.Egresses {
		if port := fmt.Sprint(e.Port); !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
		fmt.Fprintf(w, "%s: pods reach %s by the routers behind %s\n",
			e.Name, joinWords(e.Destinations, ""), joinWords(e.Gateways, ""))
		fmt.Fprintf(w, "    namespaces of clients: %s; namespaces whose pods may ask for it: %s\n"+
			"    namespaces of routers: %s\n",
			joinWords(e.Namespaces, "none"), joinWords(e.Selectable, "none"), joinWords(e.Routers, "none"))
	}
	if len(a.Egresses) > 0 {
		fmt.Fprintf(w, "security groups must allow %s port %s between clients and routers, in and out\n",
			strings.ToUpper(a.Rule.Protocol), strings.Join(ports, ", "))
		fmt.Fprintln(w, `    with "serviceLoop": "none", the nodes send the packets of clients, so allow this port `+
			"between nodes and routers, too")
	}
	if len(a.Pods) > 0 {
		fmt.Fprintln(w)
		cli.Tabulate(w, a.Pods)
	}
}

// joinWords returns the values, separated by commas, or ifNone if there are no values.
func joinWords(all []string, ifNone string) string {
	if len(all) == 0 {
		return ifNone
	}
	return strings.Join(all, ", ")
}
