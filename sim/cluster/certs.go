// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// certificates is a directory of certificates, keys and kubeconfigs.
type certificates struct {
	dir    string
	server netip.Addr // the API server's address
	ca     *x509.Certificate
	caKey  *ecdsa.PrivateKey
}

func (c certificates) file(name string) string { return filepath.Join(c.dir, name) }
func (c certificates) kubeconfig() string      { return c.file("kubeconfig") }

// newCertificates writes the files that a cluster needs (kubernetes.io, "PKI certificates and requirements"). These are
// a CA, the API server's certificate, the administrator's certificate and kubeconfig, and the keys for service account
// tokens. The API server's certificate is valid for the argument server, which is the address of the API server. It is
// also valid for the argument service, which is the ClusterIP of the API server's Service, and for 127.0.0.1. All
// programs of the cluster call the API server as administrators.
func newCertificates(dir string, server, service netip.Addr) (certificates, error) {
	c := certificates{dir: dir, server: server}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return c, err
	}
	c.ca = &x509.Certificate{Subject: pkix.Name{CommonName: "cluster"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	var err error
	if c.caKey, err = c.writeSigned("ca", c.ca); err != nil {
		return c, err
	}
	apiserver := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		IPAddresses: []net.IP{server.AsSlice(), service.AsSlice(), net.IPv4(127, 0, 0, 1)},
		DNSNames: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	admin := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	_, err1 := c.writeSigned("apiserver", apiserver)
	_, err2 := c.writeSigned("admin", admin)
	return c, errors.Join(err1, err2, c.writeServiceAccountKeys(), c.writeKubeconfig("admin", c.kubeconfig()))
}

// writeNodeCertificate writes a certificate and a kubeconfig with the permissions of a kubelet, for tests. It returns
// the path of the kubeconfig.
func (c certificates) writeNodeCertificate(name string) (string, error) {
	_, err := c.writeSigned(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	file := c.file(name + ".kubeconfig")
	return file, errors.Join(err, c.writeKubeconfig(name, file))
}

// writeSigned makes a key, and a certificate for this key from the template cert. It writes the key and the
// certificate. The CA signs the certificate. The certificate of the CA itself is signed with the new key.
func (c certificates) writeSigned(name string, cert *x509.Certificate) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	caKey := c.caKey
	if caKey == nil {
		caKey = key
	}
	cert.SerialNumber = big.NewInt(time.Now().UnixNano())
	cert.NotBefore, cert.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(30*24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, cert, c.ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", name, err)
	}
	return key, errors.Join(c.writePEM(name+".crt", "CERTIFICATE", der), c.writeKey(name+".key", key))
}

func (c certificates) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return c.writePEM(name, "EC PRIVATE KEY", der)
}

// writeServiceAccountKeys writes the keys with which the API server signs and checks the tokens of service accounts.
func (c certificates) writeServiceAccountKeys() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	return errors.Join(c.writeKey("sa.key", key), c.writePEM("sa.pub", "PUBLIC KEY", public))
}

func (c certificates) writePEM(name, kind string, der []byte) error {
	return os.WriteFile(c.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

func (c certificates) writeKubeconfig(user, file string) error {
	return os.WriteFile(file, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %s}}]
users: [{name: user, user: {client-certificate: %s, client-key: %s}}]
contexts: [{name: c, context: {cluster: c, user: user}}]
current-context: c
`, netip.AddrPortFrom(c.server, apiPort), c.file("ca.crt"), c.file(user+".crt"), c.file(user+".key")), 0o600)
}
