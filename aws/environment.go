// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"unicode"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// This file reads the variables of the environment that say where EC2 and the metadata
// service are. The SDK's package config would read them, too, but costs every process a
// millisecond at its start. The values mean the same as there.

// A variable is one of the environment. Its value is empty if it is not set.
type variable struct{ name, value string }

// env returns the first of the variables that is set.
func env(names ...string) (v variable) {
	for _, v.name = range names {
		if v.value = os.Getenv(v.name); v.value != "" {
			break
		}
	}
	return v
}

// An envError is a variable with an invalid value. No request is sent then: it could reach
// another endpoint than the operator wants.
type envError struct {
	variable
	problem string
}

func (e *envError) Error() string { return fmt.Sprintf("%s=%q: %s", e.name, e.value, e.problem) }

const hintEnv = "correct it where it is set: for the plugins in the unit of the container runtime, for timers in the units of the tool"

// invalid returns the error of a variable.
func (v variable) invalid(problem string) error { return &envError{v, problem} }

// isTrue reports whether the variable is true.
func (v variable) isTrue() (bool, error) {
	switch strings.ToLower(v.value) {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	}
	return false, v.invalid("want true or false")
}

// url returns the URL that is the value.
func (v variable) url() (string, error) {
	u, err := url.Parse(v.value)
	if v.value != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "") {
		return "", v.invalid("want a URL that begins with https:// or http://")
	}
	return v.value, nil
}

// certificates returns the certificates of the file that is the value.
func (v variable) certificates() (*x509.CertPool, error) {
	const want = "want a file with CA certificates (PEM)"
	pem, err := os.ReadFile(v.value)
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, v.invalid(p.Err.Error() + ": " + want)
	}
	all := x509.NewCertPool()
	if err != nil || !all.AppendCertsFromPEM(pem) {
		return nil, v.invalid("it has no certificate: " + want)
	}
	return all, nil
}

// regionVariable is the region of the environment.
func regionVariable() variable { return env("AWS_REGION", "AWS_DEFAULT_REGION") }

// checkRegion returns an error if the value cannot be a region. A common mistake is a zone,
// which ends in a letter.
func (v variable) checkRegion() error {
	odd := func(r rune) bool { return r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	if v.value != "" && (strings.ContainsFunc(v.value, odd) || !unicode.IsDigit(rune(v.value[len(v.value)-1]))) {
		return v.invalid("want a region, such as us-east-1")
	}
	return nil
}

// metadataEnvironment returns the endpoint of the metadata service.
func metadataEnvironment() (string, error) {
	at, err := env("AWS_EC2_METADATA_SERVICE_ENDPOINT").url()
	mode := env("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE")
	switch strings.ToLower(mode.value) {
	case "", "ipv4":
		at = cmp.Or(at, "http://169.254.169.254")
	case "ipv6":
		at = cmp.Or(at, "http://[fd00:ec2::254]")
	default:
		err = cmp.Or(err, mode.invalid("want IPv4 or IPv6"))
	}
	return at, err
}

// ec2Environment sets the options that choose the endpoint of EC2. The SDK derives the
// endpoint from the region if no variable names one.
func ec2Environment(s *ec2.Options, o Options) error {
	named := env("AWS_ENDPOINT_URL_EC2", "AWS_ENDPOINT_URL")
	at, err := named.url()
	if at = cmp.Or(o.EC2URL, at); at != "" {
		s.BaseEndpoint = &at
	} else {
		err = cmp.Or(err, regionVariable().checkRegion())
	}
	fips, dual := env("AWS_USE_FIPS_ENDPOINT"), env("AWS_USE_DUALSTACK_ENDPOINT")
	for _, v := range []variable{fips, dual} {
		yes, e := v.isTrue()
		if err = cmp.Or(err, e); yes && at != "" {
			err = cmp.Or(err, v.invalid(named.name+" already names the endpoint, "+at+": set only one of the two"))
		}
		switch {
		case yes && v == fips:
			s.EndpointOptions.UseFIPSEndpoint = sdk.FIPSEndpointStateEnabled
		case yes:
			s.EndpointOptions.UseDualStackEndpoint = sdk.DualStackEndpointStateEnabled
		}
	}
	return err
}
