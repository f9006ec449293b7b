// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"cmp"
	"context"
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

// This file reads the variables of the environment that say where EC2 and the metadata service are. The SDK's package
// config could read these variables, but costs every process a millisecond at its start. The values have the same
// meaning as in package config (AWS SDKs and Tools Reference Guide, "Settings reference").

// An Environment returns the value of a variable, or "" if it is not set. [os.Getenv] is the Environment of this
// process.
type Environment func(name string) string

// own is the environment of this process.
var own Environment = os.Getenv

// A variable is an entry of an environment. The value is empty if the variable is not set.
type variable struct{ name, value string }

// first returns the first of the variables that is set. If none is set, it returns the last variable, without a value.
func (env Environment) first(names ...string) (v variable) {
	for _, v.name = range names {
		if v.value = env(v.name); v.value != "" {
			break
		}
	}
	return v
}

// An envError is an error about a variable with an invalid value. The client then sends no request, because the request
// could reach an endpoint that the operator does not want.
type envError struct {
	variable
	problem string
}

func (e *envError) Error() string { return fmt.Sprintf("%s=%q: %s", e.name, e.value, e.problem) }

const hintEnv = "correct the variable where it is set: for the plugins, in the unit of the container runtime; for " +
	"the units of the tool, in /etc/cni-ipvlan-vpc-k8s.env; for a DaemonSet, in its env"

// invalid returns an error about the variable's value.
func (v variable) invalid(problem string) error { return &envError{v, problem} }

// isTrue reports whether the variable's value is true. An empty value counts as false.
func (v variable) isTrue() (bool, error) {
	switch strings.ToLower(v.value) {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	}
	return false, v.invalid("want true or false")
}

// url returns the variable's value if it is a URL or empty, and an error otherwise.
func (v variable) url() (string, error) {
	u, err := url.Parse(v.value)
	if v.value != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "") {
		return "", v.invalid("want a URL that begins with https:// or http://")
	}
	return v.value, nil
}

// certificates returns the certificates in the file that the variable's value names.
func (v variable) certificates() (*x509.CertPool, error) {
	const want = "want a file with CA certificates (PEM)"
	pem, err := os.ReadFile(v.value)
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, v.invalid(p.Err.Error() + ": " + want)
	}
	all := x509.NewCertPool()
	if err != nil || !all.AppendCertsFromPEM(pem) {
		return nil, v.invalid("the file has no certificate: " + want)
	}
	return all, nil
}

// region is the region that the environment names.
func (env Environment) region() variable { return env.first("AWS_REGION", "AWS_DEFAULT_REGION") }

// checkRegion returns an error if the value cannot be a region. A common mistake is a zone,
// which ends in a letter.
func (v variable) checkRegion() error {
	odd := func(r rune) bool { return r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	if v.value != "" && (strings.ContainsFunc(v.value, odd) || !unicode.IsDigit(rune(v.value[len(v.value)-1]))) {
		return v.invalid("want a region, such as us-east-1")
	}
	return nil
}

// metadata returns the endpoint of the metadata service.
func (env Environment) metadata() (string, error) {
	at, err := env.first("AWS_EC2_METADATA_SERVICE_ENDPOINT").url()
	if off := env.first("AWS_EC2_METADATA_DISABLED"); strings.EqualFold(off.value, "true") { // the SDK reads it
		err = cmp.Or(err, off.invalid("this program needs metadata: want false, or no such variable"))
	}
	mode := env.first("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE")
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

// named returns the variable that names the endpoint of EC2. The result has no value if no such variable is set, or if
// $AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is true.
func (env Environment) named() (variable, error) {
	ignore, err := env.first("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").isTrue()
	v := env.first("AWS_ENDPOINT_URL_EC2", "AWS_ENDPOINT_URL")
	if ignore {
		v.value = ""
	}
	return v, err
}

// ec2 sets the options in s that choose the endpoint of EC2. It returns the names of the variables that choose the
// endpoint. If no variable names an endpoint, the SDK derives it from the region.
func (env Environment) ec2(s *ec2.Options, o Options) (chosen []string, err error) {
	named, err := env.named()
	at, e := named.url()
	err = cmp.Or(err, e)
	switch {
	case o.EC2URL != "":
		at = o.EC2URL
	case at != "":
		chosen = append(chosen, named.name)
	default:
		err = cmp.Or(err, env.region().checkRegion())
	}
	if at != "" {
		s.BaseEndpoint = &at
	}
	fips, dual := env.first("AWS_USE_FIPS_ENDPOINT"), env.first("AWS_USE_DUALSTACK_ENDPOINT")
	for _, v := range []variable{fips, dual} {
		yes, e := v.isTrue()
		if err = cmp.Or(err, e); yes && at != "" {
			err = cmp.Or(err, v.invalid(named.name+" already names the endpoint, "+at+": set only one of these two "+
				"variables"))
		}
		if yes {
			chosen = append(chosen, v.name)
		}
		switch {
		case yes && v == fips:
			s.EndpointOptions.UseFIPSEndpoint = sdk.FIPSEndpointStateEnabled
		case yes:
			s.EndpointOptions.UseDualStackEndpoint = sdk.DualStackEndpointStateEnabled
		}
	}
	return chosen, err
}

// endpointOf returns the URL of EC2 that the SDK uses in a region, or "" if the SDK knows no URL there.
func endpointOf(ctx context.Context, s ec2.Options, region string) string {
	e, err := ec2.NewDefaultEndpointResolverV2().ResolveEndpoint(ctx, ec2.EndpointParameters{
		Region: &region, Endpoint: s.BaseEndpoint,
		UseFIPS:      sdk.Bool(s.EndpointOptions.UseFIPSEndpoint == sdk.FIPSEndpointStateEnabled),
		UseDualStack: sdk.Bool(s.EndpointOptions.UseDualStackEndpoint == sdk.DualStackEndpointStateEnabled),
	})
	if err != nil {
		return ""
	}
	return e.URI.String()
}
