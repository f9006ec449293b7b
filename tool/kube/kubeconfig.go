// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kube

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// A kubeconfig has the keys of a kubeconfig file (Kubernetes reference, "kubeconfig (v1)"). Some keys are here only so
// that Load refuses these keys. If Load ignored them, a request would lack credentials, or would go to another server.
type kubeconfig struct {
	CurrentContext string                     `json:"current-context"`
	Clusters       []namedEntry[server]       `json:"clusters"`
	Users          []namedEntry[user]         `json:"users"`
	Contexts       []namedEntry[contextEntry] `json:"contexts"`
}

// A namedEntry is an entry of one of the lists in a kubeconfig. Each list has its values in a field of its own:
// Cluster, User or Context.
type namedEntry[T any] struct {
	Name    string `json:"name"`
	Cluster T      `json:"cluster"`
	User    T      `json:"user"`
	Context T      `json:"context"`
}

type server struct {
	Server        string `json:"server"`
	CA            string `json:"certificate-authority"`
	CAData        []byte `json:"certificate-authority-data"`
	Insecure      bool   `json:"insecure-skip-tls-verify"`
	TLSServerName string `json:"tls-server-name"`
	ProxyURL      string `json:"proxy-url"`
}

type user struct {
	Certificate     string      `json:"client-certificate"`
	CertificateData []byte      `json:"client-certificate-data"`
	Key             string      `json:"client-key"`
	KeyData         []byte      `json:"client-key-data"`
	Token           string      `json:"token"`
	TokenFile       string      `json:"tokenFile"`
	Exec            *execPlugin `json:"exec"`

	Username     string         `json:"username"`
	AuthProvider map[string]any `json:"auth-provider"`
	As           string         `json:"as"`
	AsUID        string         `json:"as-uid"`
	AsGroups     []string       `json:"as-groups"`
}

type contextEntry struct {
	Cluster string `json:"cluster"`
	User    string `json:"user"`
}

// Load reads a kubeconfig, and gets the credentials of the user in the kubeconfig's current context. A relative path in
// the file is relative to the directory of the file.
func Load(ctx context.Context, path string) (*Client, error) {
	c, err := load(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func load(ctx context.Context, path string) (*Client, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all kubeconfig
	if err := yaml.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("the file is no kubeconfig: %w", err)
	}
	at, as, err := all.currentContext()
	if err != nil {
		return nil, err
	}
	at.CA = resolvePath(path, at.CA)
	as.Certificate, as.Key = resolvePath(path, as.Certificate), resolvePath(path, as.Key)
	as.TokenFile = resolvePath(path, as.TokenFile)
	if as.Exec != nil {
		as.Exec.dir = filepath.Dir(path)
	}
	return newClient(ctx, at, as)
}

// resolvePath returns a path that a file names. A relative path is relative to the directory of the file.
func resolvePath(file, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(file), path)
}

// currentContext returns the cluster and the user of the current context.
func (all kubeconfig) currentContext() (at server, as user, err error) {
	context, err := entry(all.Contexts, "context", all.CurrentContext)
	if err != nil {
		return at, as, err
	}
	cluster, err1 := entry(all.Clusters, "cluster", context.Context.Cluster)
	credentials, err2 := entry(all.Users, "user", context.Context.User)
	return cluster.Cluster, credentials.User, errors.Join(err1, err2)
}

func entry[T any](all []namedEntry[T], kind, name string) (one namedEntry[T], err error) {
	i := slices.IndexFunc(all, func(n namedEntry[T]) bool { return n.Name == name })
	if i < 0 {
		return one, fmt.Errorf("the file has no %s %q", kind, name)
	}
	return all[i], nil
}

// newClient returns a client of the server "at", with the credentials of the user "as".
func newClient(ctx context.Context, at server, as user) (*Client, error) {
	address, err := url.Parse(at.Server)
	if err != nil || address.Scheme != "https" || address.Host == "" {
		return nil, fmt.Errorf("server %q: want a URL that begins with https://", at.Server)
	}
	c := &Client{server: address}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: at.TLSServerName, InsecureSkipVerify: at.Insecure}
	if config.RootCAs, err = at.rootCAs(); err != nil {
		return nil, err
	}
	cert, token, err := as.credentials(ctx, at)
	if err != nil {
		return nil, err
	}
	if c.token = token; cert != nil {
		config.Certificates = []tls.Certificate{*cert}
		c.node = nodeOf(cert.Leaf)
	}
	proxy := http.ProxyFromEnvironment
	if at.ProxyURL != "" {
		by, err := url.Parse(at.ProxyURL)
		if err != nil {
			return nil, fmt.Errorf("proxy-url: %w", err)
		}
		proxy = http.ProxyURL(by)
	}
	c.http = &http.Client{
		Transport: &http.Transport{TLSClientConfig: config, Proxy: proxy, DisableKeepAlives: true},
		// No redirect may send the credentials to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// rootCAs returns the authorities that may sign the server's certificate. nil means the authorities of the system.
func (s server) rootCAs() (*x509.CertPool, error) {
	text := s.CAData
	if len(text) == 0 && s.CA != "" {
		var err error
		if text, err = os.ReadFile(s.CA); err != nil {
			return nil, err
		}
	}
	if len(text) == 0 {
		return nil, nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("certificate-authority: %s has no certificate", cmp.Or(s.CA, "its data"))
	}
	return roots, nil
}

// credentials returns the user's certificate, the user's token, or both. It reads the files in each call, because
// kubelets replace their certificates, and tokens expire.
func (u user) credentials(ctx context.Context, at server) (*tls.Certificate, string, error) {
	switch {
	case u.Username != "" || u.AuthProvider != nil:
		return nil, "", errors.New("user: want a certificate, a token or exec, because Kubernetes no longer accepts " +
			"a password or an auth-provider")
	case u.As != "" || u.AsUID != "" || len(u.AsGroups) > 0:
		return nil, "", errors.New("user: want the kubelet's own credentials, and no impersonation (as)")
	case u.Exec != nil:
		return u.Exec.credentials(ctx, at)
	}
	cert, err := u.certificate()
	if err != nil {
		return nil, "", err
	}
	token := u.Token
	if u.TokenFile != "" { // tokenFile has precedence over token, as in client-go
		text, err := os.ReadFile(u.TokenFile)
		if err != nil {
			return nil, "", err
		}
		token = strings.TrimSpace(string(text))
	}
	if cert == nil && token == "" {
		return nil, "", errors.New("user: want a certificate, a token or exec, but the user has none of these")
	}
	return cert, token, nil
}

// certificate returns the user's certificate with its key, or nil if the user has none.
func (u user) certificate() (*tls.Certificate, error) {
	cert, err1 := dataOrFile(u.CertificateData, u.Certificate)
	key, err2 := dataOrFile(u.KeyData, u.Key)
	if err := errors.Join(err1, err2); err != nil || len(cert) == 0 {
		return nil, err
	}
	return keyPair(cert, key)
}

// dataOrFile returns data, or the content of the file if data is empty. If there is neither data nor a file, the result
// is empty.
func dataOrFile(data []byte, file string) ([]byte, error) {
	if len(data) > 0 || file == "" {
		return data, nil
	}
	return os.ReadFile(file)
}

func keyPair(cert, key []byte) (*tls.Certificate, error) {
	c, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("client certificate: %w", err)
	}
	return &c, nil
}
