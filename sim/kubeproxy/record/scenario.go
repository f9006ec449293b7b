// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// A scenario has the content of scenario.json in the directory testdata of package kubeproxy. That package explains the
// fields.
type scenario struct {
	ServiceCIDRs []netip.Prefix
	Hosts        map[string]addrs
	Services     []service
}

type addrs struct{ V4, V6 netip.Addr }

type service struct {
	Name                       string
	ClusterIP                  addrs
	Port, TargetPort, NodePort uint16
	Backends                   []string
	ClientIPAffinity           bool
	ExternalTrafficLocal       bool
}

func readScenario(file string) (s scenario, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(b, &s)
}

// nodeName is the node for which kube-proxy writes rules. The constant "elsewhere" is the node of all other backends.
const (
	nodeName  = "node1"
	elsewhere = "node2"
)

// onNode are the roles of the hosts on the recorded node.
var onNode = []string{"node", "client", "sibling", "local"}

// An object is a JSON object of the Kubernetes API.
type object = map[string]any

// answersByPath returns the answers of the API server, by the path of a request.
func (s scenario) answersByPath() map[string]object {
	return map[string]object{
		"/api/v1/nodes":    list("v1", "NodeList", s.node()),
		"/api/v1/services": list("v1", "ServiceList", s.services()...),
		"/apis/discovery.k8s.io/v1/endpointslices": list("discovery.k8s.io/v1", "EndpointSliceList",
			s.endpointSlices()...),
		"/apis/networking.k8s.io/v1/servicecidrs": list("networking.k8s.io/v1", "ServiceCIDRList", s.cidrs()),
	}
}

func list(version, kind string, items ...object) object {
	return object{"apiVersion": version, "kind": kind, "metadata": object{"resourceVersion": "1"}, "items": items}
}

func meta(namespace, name string) object {
	return object{"namespace": namespace, "name": name, "uid": name, "resourceVersion": "1"}
}

func (s scenario) node() object {
	a := s.Hosts["node"]
	return object{
		"metadata": meta("", nodeName),
		"status": object{"addresses": []object{
			{"type": "InternalIP", "address": a.V4},
			{"type": "InternalIP", "address": a.V6},
		}},
	}
}

func (s scenario) cidrs() object {
	return object{"metadata": meta("", "kubernetes"), "spec": object{"cidrs": s.ServiceCIDRs}}
}

func (s scenario) services() (all []object) {
	for _, v := range s.Services {
		spec := object{
			"type": "ClusterIP", "clusterIP": v.ClusterIP.V4, "clusterIPs": []netip.Addr{v.ClusterIP.V4,
				v.ClusterIP.V6},
			"ipFamilies": []string{"IPv4", "IPv6"}, "ipFamilyPolicy": "RequireDualStack",
			"internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
		}
		if v.ClientIPAffinity {
			spec["sessionAffinity"] = "ClientIP"
			spec["sessionAffinityConfig"] = object{"clientIP": object{"timeoutSeconds": 10800}}
		}
		if v.NodePort != 0 {
			spec["type"], spec["externalTrafficPolicy"] = "NodePort", "Cluster"
		}
		if v.ExternalTrafficLocal {
			spec["externalTrafficPolicy"] = "Local"
		}
		spec["ports"] = v.ports(func(p object) {
			p["port"], p["targetPort"], p["nodePort"] = v.Port, v.TargetPort, v.NodePort
		})
		all = append(all, object{"metadata": meta("default", v.Name), "spec": spec})
	}
	return all
}

// endpointSlices returns an EndpointSlice for each Service with backends and each family.
func (s scenario) endpointSlices() (all []object) {
	for _, v := range s.Services {
		if len(v.Backends) == 0 {
			continue
		}
		var v4, v6 []object
		for _, b := range v.Backends {
			v4 = append(v4, endpoint(b, s.Hosts[b].V4))
			v6 = append(v6, endpoint(b, s.Hosts[b].V6))
		}
		all = append(all, v.slice("IPv4", v4), v.slice("IPv6", v6))
	}
	return all
}

func (v service) slice(family string, endpoints []object) object {
	m := meta("default", v.Name+"-"+family)
	m["labels"] = object{"kubernetes.io/service-name": v.Name}
	ports := v.ports(func(p object) { p["port"] = v.TargetPort })
	return object{"metadata": m, "addressType": family, "endpoints": endpoints, "ports": ports}
}

func endpoint(host string, a netip.Addr) object {
	on := elsewhere
	if slices.Contains(onNode, host) {
		on = nodeName
	}
	ready := object{"ready": true, "serving": true, "terminating": false}
	return object{"addresses": []netip.Addr{a}, "nodeName": on, "conditions": ready}
}

// ports returns the ports of a Service for TCP and UDP. The function "fill" must add the port numbers to each port.
func (v service) ports(fill func(object)) (all []object) {
	for _, protocol := range []string{"TCP", "UDP"} {
		p := object{"name": strings.ToLower(protocol), "protocol": protocol}
		fill(p)
		all = append(all, p)
	}
	return all
}
