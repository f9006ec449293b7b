// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package kube makes one kind of request to the API server of Kubernetes: it changes the status of this node. The
// credentials are in the kubelet's kubeconfig: a certificate, a token, or a program that prints one of these. Package
// kube reads only the node's status from the answer.
package kube

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// Kubeconfigs are the paths at which kubelets have their kubeconfig.
var Kubeconfigs = []string{
	"/etc/kubernetes/kubelet.conf",                   // kubeadm
	"/var/lib/kubelet/kubeconfig",                    // EKS and kOps
	"/etc/kubernetes/kubelet/kubeconfig",             // Bottlerocket
	"/etc/kubernetes/kubeconfig-kubelet",             // Talos
	"/var/lib/rancher/k3s/agent/kubelet.kubeconfig",  // k3s
	"/var/lib/rancher/rke2/agent/kubelet.kubeconfig", // RKE2
}

// Find returns the first of Kubeconfigs that exists.
func Find() (path string, found bool) {
	for _, path := range Kubeconfigs {
		if _, err := os.Stat(path); err == nil {
			return path, true
		}
	}
	return "", false
}

const requestTimeout = 30 * time.Second

// A Client makes requests to one API server, with the credentials of a kubeconfig.
type Client struct {
	server *url.URL
	http   *http.Client
	token  string
	node   string // the node that the certificate names, or ""
}

// Node returns the name of the node in the client's certificate, or "" if the credentials are a token.
func (c *Client) Node() string { return c.node }

// A Refusal is an answer of the API server whose status is not 200.
type Refusal struct {
	Status  int    // status code of HTTP
	Message string // message of the server
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("the API server answers %d %s: %s", r.Status, http.StatusText(r.Status), r.Message)
}

// Resources has a number for each extended resource of a node. The key is the name of the resource. If the number is
// nil, PatchNode removes the resource.
type Resources map[string]*int

// PatchNode sets extended resources in a node's status, in the fields capacity and allocatable. It changes no other
// field of the node. PatchNode returns the new capacity of the node, by resource name.
func (c *Client) PatchNode(ctx context.Context, node string, resources Resources) (map[string]string, error) {
	values := map[string]any{}
	for name, n := range resources {
		if values[name] = nil; n != nil {
			values[name] = fmt.Sprint(*n)
		}
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": values, "allocatable": values}})
	if err != nil {
		return nil, err
	}
	var answer struct {
		Status struct{ Capacity map[string]string }
	}
	at := c.server.JoinPath("api", "v1", "nodes", node, "status")
	at.RawQuery = url.Values{"fieldManager": {"cni-ipvlan-vpc-k8s"}}.Encode()
	err = c.patch(ctx, at, body, &answer)
	return answer.Status.Capacity, err
}

// patch sends a merge patch (RFC 7396), and decodes the answer.
func (c *Client) patch(ctx context.Context, at *url.URL, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPatch, at.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/merge-patch+json")
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "cni-ipvlan-vpc-k8s")
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	const most = 16 << 20 // a real answer has only about 100 kB, even for a node with many images
	text, err := io.ReadAll(io.LimitReader(response.Body, most))
	if err != nil {
		return fmt.Errorf("read the answer of the API server: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return &Refusal{response.StatusCode, messageOf(text)}
	}
	return json.Unmarshal(text, into)
}

// messageOf returns the message of a Status object, or the beginning of any other text. Such a text may be from a
// server that is no API server.
func messageOf(text []byte) string {
	const some = 200
	var status struct{ Message string }
	if json.Unmarshal(text, &status) == nil && status.Message != "" {
		return status.Message
	}
	return string(text[:min(len(text), some)])
}

// Untrusted reports whether an error means that the kubeconfig does not trust the API server's certificate.
func Untrusted(err error) bool {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, other := errors.AsType[x509.HostnameError](err)
	return unknown || other
}

// nodeOf returns the node that a client certificate names (Kubernetes documentation, "Using Node Authorization").
func nodeOf(cert *x509.Certificate) string {
	node, ok := strings.CutPrefix(cert.Subject.CommonName, "system:node:")
	if !ok {
		return ""
	}
	return node
}
