// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"io/fs"
	"testing"
)

// TestOfUnit reads the output of systemctl show for a unit, and the files that the output names. A later value replaces
// an earlier value.
func TestOfUnit(t *testing.T) {
	const shown = `LoadState=loaded
Environment=AWS_REGION=eu-west-1 "NO_PROXY=10.0.0.0/8, vpc.test" AWS_CA_BUNDLE=/etc/ca.pem
EnvironmentFiles=/etc/cni-ipvlan-vpc-k8s.env (ignore_errors=yes)
EnvironmentFiles=/etc/missing.env (ignore_errors=yes)
`
	files := map[string]string{"/etc/cni-ipvlan-vpc-k8s.env": `# AWS_PROFILE=x
; AWS_PROFILE=y
AWS_REGION = us-gov-west-1
HTTPS_PROXY="http://proxy.test:3128"
AWS_USE_FIPS_ENDPOINT='true'
AWS_ENDPOINT_URL=https://vpce.test/a=b
a line without a variable
`}
	env := environmentOf(unitVariables(shown, func(name string) ([]byte, error) {
		text, ok := files[name]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return []byte(text), nil
	}))
	for name, want := range map[string]string{
		"AWS_REGION": "us-gov-west-1", "NO_PROXY": "10.0.0.0/8, vpc.test", "AWS_CA_BUNDLE": "/etc/ca.pem",
		"HTTPS_PROXY":           "http://proxy.test:3128",
		"AWS_USE_FIPS_ENDPOINT": "true", "AWS_ENDPOINT_URL": "https://vpce.test/a=b", "AWS_PROFILE": "",
		"LoadState": "",
	} {
		if got := env(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}
