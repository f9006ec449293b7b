// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/iam"
)

// callerPolicy returns the IAM policy that the caller needs. The instances use a session of the caller's credentials,
// so the policy includes the permissions that the instances need. The policy allows changes and deletions only of
// objects with the tag of a run. It allows CreateTags only in a call that creates an object. The IAM user guide
// describes the syntax ("Grammar of the IAM JSON policy language"). The Service Authorization Reference describes the
// condition keys ("Actions, resources, and condition keys for Amazon EC2").
func callerPolicy() iam.Policy {
	ours := map[string]map[string]string{"Null": {"aws:ResourceTag/" + tagRun: "false"}}
	allow := func(sid string, condition map[string]map[string]string, actions ...string) iam.Permission {
		p := iam.Permission{SID: sid, Effect: "Allow", Resource: []string{"*"}, Condition: condition}
		for _, a := range actions {
			p.Action = append(p.Action, "ec2:"+a)
		}
		return p
	}
	others := slices.DeleteFunc(api.Names(0), func(a string) bool {
		return !api.Changes(a) || api.Is(a, api.Makes) || a == "CreateTags"
	})
	return iam.Policy{Version: "2012-10-17", Statement: []iam.Permission{
		allow("Look", nil, api.Names(api.Describes)...),
		allow("Make", nil, api.Names(api.Makes)...),
		allow("TagWhatIsMade", map[string]map[string]string{"Null": {"ec2:CreateAction": "false"}}, "CreateTags"),
		allow("ChangeAndDeleteIt", ours, others...),
	}}
}
