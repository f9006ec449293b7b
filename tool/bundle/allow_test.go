// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bundle

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestAllowedFields puts a secret into each text field of the types that a bundle copies. Only the fields in
// allowedFields may keep the secret. If another field keeps the secret, filter that field, or add it to allowedFields.
func TestAllowedFields(t *testing.T) {
	w := newAllowance()
	state := func(change func(*registry.State)) any {
		s := &registry.State{ENIs: map[string]registry.ENI{}, Intents: map[string]registry.Intent{},
			Failures: map[string]registry.Failure{}, Refusals: map[string]registry.Refusal{}}
		change(s)
		return w.keptState(s)
	}
	var kept []string
	keeps := func(value any, copied func() any) {
		v := reflect.ValueOf(value).Elem()
		for _, f := range reflect.VisibleFields(v.Type()) {
			if !f.IsExported() || !setText(v.FieldByIndex(f.Index)) {
				continue
			}
			text, err := json.Marshal(copied())
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), secret) {
				kept = append(kept, v.Type().String()+"."+f.Name)
			}
			v.FieldByIndex(f.Index).SetZero()
		}
	}
	var e aws.ENI
	keeps(&e, func() any { return w.keptENIs([]aws.ENI{e}) })
	var sub aws.Subnet
	keeps(&sub, func() any { return w.keptSubnets([]aws.Subnet{sub}) })
	var l nl.Link
	keeps(&l, func() any { return w.keptLinks([]nl.Link{l}) })
	var r registry.ENI
	keeps(&r, func() any { return state(func(s *registry.State) { s.ENIs["eni-1"] = r }) })
	var i registry.Intent
	keeps(&i, func() any { return state(func(s *registry.State) { s.Intents["t"] = i }) })
	var f registry.Failure
	keeps(&f, func() any { return state(func(s *registry.State) { s.Failures["t"] = f }) })
	var x registry.Refusal
	keeps(&x, func() any { return state(func(s *registry.State) { s.Refusals["t"] = x }) })
	slices.Sort(kept)
	if d := cmp.Diff(allowedFields, kept); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

const secret = "hunter2pass"

// setText puts the secret into a field, and reports whether the field is a text, a list of texts or a map of texts.
func setText(v reflect.Value) bool {
	text := func(of reflect.Type) reflect.Value { return reflect.ValueOf(secret).Convert(of) }
	switch k := v.Type(); {
	case k.Kind() == reflect.String:
		v.Set(text(k))
	case k.Kind() == reflect.Slice && k.Elem().Kind() == reflect.String:
		v.Set(reflect.Append(v, text(k.Elem())))
	case k.Kind() == reflect.Map && k.Key().Kind() == reflect.String && k.Elem().Kind() == reflect.String:
		v.Set(reflect.MakeMap(k))
		v.SetMapIndex(text(k.Key()), text(k.Elem()))
	default:
		return false
	}
	return true
}

// allowedFields are the fields that may keep a text: identifiers, states, and names of links and pools.
var allowedFields = strings.Fields(`
	aws.ENI.Attachment aws.ENI.AttachmentStatus aws.ENI.ID aws.ENI.Instance aws.ENI.MAC aws.ENI.SecurityGroups
	aws.ENI.Status aws.ENI.Subnet aws.ENI.VPC
	aws.Subnet.ID aws.Subnet.VPC aws.Subnet.Zone
	nl.Link.Kind nl.Link.MAC nl.Link.Mode nl.Link.Name
	registry.ENI.Groups registry.ENI.Link registry.ENI.MAC registry.ENI.Pool registry.ENI.Subnet
	registry.ENI.TagsUnknown registry.ENI.VPC
	registry.Intent.Action registry.Intent.Attachment registry.Intent.ENI registry.Intent.SecurityGroups
	registry.Intent.Subnet registry.Refusal.Request`)
