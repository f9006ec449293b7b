// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// An execPlugin is a program that prints credentials, such as "aws eks get-token" (Kubernetes documentation,
// "Authenticating", client-go credential plugins).
type execPlugin struct {
	APIVersion string   `json:"apiVersion"`
	Command    string   `json:"command"`
	Args       []string `json:"args"`
	Env        []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"env"`
	InstallHint        string `json:"installHint"`
	ProvideClusterInfo bool   `json:"provideClusterInfo"`
	InteractiveMode    string `json:"interactiveMode"`

	dir string // directory of the kubeconfig
}

// An execCredential is the JSON object that the program of an execPlugin gets. The program prints another
// execCredential.
type execCredential struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Spec       *execSpec   `json:"spec,omitempty"`
	Status     *execStatus `json:"status,omitempty"`
}

type execSpec struct {
	Interactive bool         `json:"interactive"`
	Cluster     *execCluster `json:"cluster,omitempty"`
}

type execCluster struct {
	Server        string `json:"server"`
	TLSServerName string `json:"tls-server-name,omitempty"`
	Insecure      bool   `json:"insecure-skip-tls-verify,omitempty"`
	CAData        []byte `json:"certificate-authority-data,omitempty"`
	ProxyURL      string `json:"proxy-url,omitempty"`
}

type execStatus struct {
	Token       string `json:"token"`
	Certificate string `json:"clientCertificateData"`
	Key         string `json:"clientKeyData"`
}

const execCredentialKind = "ExecCredential"

// credentials runs the program, and returns the certificate and the token that it prints. If ctx ends before the
// program has ended, credentials kills the program.
func (e *execPlugin) credentials(ctx context.Context, at server) (*tls.Certificate, string, error) {
	fail := func(err error) (*tls.Certificate, string, error) {
		return nil, "", fmt.Errorf("exec: %s: %w", e.Command, err)
	}
	if e.InteractiveMode == "Always" {
		return fail(errors.New("interactiveMode is Always, but no person can answer a prompt here: want IfAvailable " +
			"or Never"))
	}
	out, err := e.output(ctx, at)
	if err != nil {
		return fail(err)
	}
	var c execCredential
	switch err := json.Unmarshal(out, &c); {
	case err != nil:
		return fail(fmt.Errorf("its output is no %s: %w", execCredentialKind, err))
	case c.Kind != execCredentialKind || c.APIVersion != e.APIVersion || c.Status == nil:
		return fail(fmt.Errorf("its output is a %s of %q: want an %s of %q with a status", c.Kind, c.APIVersion,
			execCredentialKind, e.APIVersion))
	case c.Status.Token == "" && c.Status.Certificate == "":
		return fail(errors.New("its output has neither a token nor a certificate"))
	case c.Status.Certificate == "":
		return nil, c.Status.Token, nil
	}
	cert, err := keyPair([]byte(c.Status.Certificate), []byte(c.Status.Key))
	if err != nil {
		return fail(err)
	}
	return cert, c.Status.Token, nil
}

// output runs the program, and returns what it prints.
func (e *execPlugin) output(ctx context.Context, at server) ([]byte, error) {
	info, err := e.execInfo(at)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	command := e.Command
	// If the command is a name without a separator, keep the name, because exec then searches PATH.
	if strings.ContainsRune(command, filepath.Separator) {
		command = resolvePath(filepath.Join(e.dir, "kubeconfig"), command)
	}
	c := exec.CommandContext(ctx, command, e.Args...)
	c.WaitDelay = time.Second // the program may have started another program that keeps the pipes open
	c.Env = append(os.Environ(), "KUBERNETES_EXEC_INFO="+string(info))
	for _, v := range e.Env {
		c.Env = append(c.Env, v.Name+"="+v.Value)
	}
	var failure bytes.Buffer
	c.Stderr = &failure
	out, err := c.Output()
	switch {
	case errors.Is(err, exec.ErrNotFound) && e.InstallHint != "":
		return nil, fmt.Errorf("%w: %s", err, e.InstallHint)
	case err != nil && !errors.Is(err, exec.ErrWaitDelay): // ErrWaitDelay means that the exit status was 0
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(failure.String()))
	}
	return out, nil
}

// execInfo returns the JSON object for the program. If the kubeconfig sets provideClusterInfo, the object describes the
// cluster.
func (e *execPlugin) execInfo(at server) ([]byte, error) {
	c := execCredential{APIVersion: e.APIVersion, Kind: execCredentialKind, Spec: &execSpec{}}
	if e.ProvideClusterInfo {
		ca, err := dataOrFile(at.CAData, at.CA)
		if err != nil {
			return nil, err
		}
		c.Spec.Cluster = &execCluster{Server: at.Server, TLSServerName: at.TLSServerName, Insecure: at.Insecure,
			CAData: ca, ProxyURL: at.ProxyURL}
	}
	return json.Marshal(c)
}
