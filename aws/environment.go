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

// This Go file reads the environment variables that say where EC2 and the metadata service are. The variables have the
// same meaning as in the SDK's package config (AWS SDKs and Tools Reference Guide, "Settings reference"). The suite
// does not use package config, because this package makes the start of each process a millisecond slower.

// An Environment returns the value of the environment variable with this name, or "" if the variable is not set.
// [os.Getenv] is the Environment of this process.
type Environment func(name string) string

var processEnv Environment = os.Getenv

// A variable is an environment variable. If it is not set, the value is empty.
type variable struct{ name, value string }

// firstSet returns the first of the variables that is set. If none is set, it returns the last variable, without a
// value.
func (env Environment) firstSet(names ...string) (v variable) {
	for _, v.name = range names {
		if v.value = env(v.name); v.value != "" {
			break
		}
	}
	return v
}

// An envError is an error about a variable with an invalid value. The Client then sends no request, because the request
// could go to an endpoint that the operator does not want.
type envError struct {
	variable
	problem string
}

func (e *envError) Error() string { return fmt.Sprintf("%s=%q: %s", e.name, e.value, e.problem) }

const hintEnv = "correct the variable where it is set: for the plugins, in the unit of the container runtime; for " +
	"the units of the tool, in /etc/cni-ipvlan-vpc-k8s.env; for a DaemonSet, in its env"

func (v variable) invalidError(problem string) error { return &envError{v, problem} }

// isTrue returns the variable's value as a bool. An empty value is false.
func (v variable) isTrue() (bool, error) {
	switch strings.ToLower(v.value) {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	}
	return false, v.invalidError("want true or false")
}

// urlValue returns the variable's value, which must be empty or a URL. For any other value, urlValue returns an error.
func (v variable) urlValue() (string, error) {
	u, err := url.Parse(v.value)
	if v.value != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "") {
		return "", v.invalidError("want a URL that begins with https:// or http://")
	}
	return v.value, nil
}

func (v variable) certificates() (*x509.CertPool, error) {
	const want = "want a file with CA certificates (PEM)"
	pem, err := os.ReadFile(v.value)
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, v.invalidError(p.Err.Error() + ": " + want)
	}
	all := x509.NewCertPool()
	if err != nil || !all.AppendCertsFromPEM(pem) {
		return nil, v.invalidError("the file has no certificate: " + want)
	}
	return all, nil
}

func (env Environment) regionVariable() variable {
	return env.firstSet("AWS_REGION", "AWS_DEFAULT_REGION")
}

// checkRegion returns an error if the variable's value cannot be a region. A common mistake is the name of an
// availability zone, which ends in a letter.
func (v variable) checkRegion() error {
	odd := func(r rune) bool { return r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }
	if v.value != "" && (strings.ContainsFunc(v.value, odd) || !unicode.IsDigit(rune(v.value[len(v.value)-1]))) {
		return v.invalidError("want a region, such as us-east-1")
	}
	return nil
}

func (env Environment) metadataURL() (string, error) {
	at, err := env.firstSet("AWS_EC2_METADATA_SERVICE_ENDPOINT").urlValue()
	// like the SDK's own metadata client, send no request if $AWS_EC2_METADATA_DISABLED is true
	if off := env.firstSet("AWS_EC2_METADATA_DISABLED"); strings.EqualFold(off.value, "true") {
		err = cmp.Or(err, off.invalidError("this program needs metadata: want false, or no such variable"))
	}
	mode := env.firstSet("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE")
	switch strings.ToLower(mode.value) {
	case "", "ipv4":
		at = cmp.Or(at, "http://169.254.169.254")
	case "ipv6":
		at = cmp.Or(at, "http://[fd00:ec2::254]")
	default:
		err = cmp.Or(err, mode.invalidError("want IPv4 or IPv6"))
	}
	return at, err
}

// endpointVariable returns the variable that names the endpoint of EC2. If no variable names an endpoint, or if
// $AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is true, the result has no value.
func (env Environment) endpointVariable() (variable, error) {
	ignore, err := env.firstSet("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").isTrue()
	v := env.firstSet("AWS_ENDPOINT_URL_EC2", "AWS_ENDPOINT_URL")
	if ignore {
		v.value = ""
	}
	return v, err
}

// setEndpoint sets the SDK's options for the endpoint of EC2. It returns the names of the variables that determine
// these options. If neither the [Options] nor a variable names an endpoint, the SDK derives the endpoint from the
// region.
func (env Environment) setEndpoint(s *ec2.Options, o Options) (chosen []string, err error) {
	named, err := env.endpointVariable()
	at, e := named.urlValue()
	err = cmp.Or(err, e)
	switch {
	case o.EC2URL != "":
		at = o.EC2URL
	case at != "":
		chosen = append(chosen, named.name)
	default:
		err = cmp.Or(err, env.regionVariable().checkRegion())
	}
	if at != "" {
		s.BaseEndpoint = &at
	}
	fips, dual := env.firstSet("AWS_USE_FIPS_ENDPOINT"), env.firstSet("AWS_USE_DUALSTACK_ENDPOINT")
	for _, v := range []variable{fips, dual} {
		yes, e := v.isTrue()
		if err = cmp.Or(err, e); yes && at != "" {
			err = cmp.Or(err, v.invalidError(named.name+" already names the endpoint, "+at+
				": set only one of these two variables"))
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

// endpointOf returns the URL of EC2 that the SDK uses in a region, or "" if the SDK knows no URL for the region.
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
