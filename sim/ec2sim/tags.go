// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"maps"
	"slices"
	"strings"
)

// maxTags is the maximum number of tags of a resource (Guide: "Tag your Amazon EC2 resources").
const maxTags = 50

type tag struct {
	Key   string `ec2:"Key,required" xml:"key"`
	Value string `ec2:"Value" xml:"value"`
}

type createTagsInput struct {
	ResourceIDs []string `ec2:"ResourceId,required"`
	Tags        []tag    `ec2:"Tag,required"`
}

// createTags adds tags to resources, and overwrites tags with the same key (API: CreateTags).
func (s *Sim) createTags(in *createTagsInput) (*emptyOutput, error) {
	var all []map[string]string
	for _, id := range in.ResourceIDs {
		old, err := s.tagsOf(id)
		if err != nil {
			return nil, err
		}
		both := maps.Clone(old)
		if err := addTags(both, in.Tags); err != nil {
			return nil, err
		}
		all = append(all, old)
	}
	for _, tags := range all {
		addTags(tags, in.Tags)
	}
	return &emptyOutput{Return: true}, nil
}

// tagsOf returns the tags of a resource of any type. The result is the resource's own map: if the caller changes the
// map, the resource's tags change.
func (s *Sim) tagsOf(id string) (map[string]string, error) {
	kind, _, _ := strings.Cut(id, "-")
	switch kind {
	case "eni":
		e, err := s.eni(id)
		if err != nil {
			return nil, err
		}
		return e.tags, nil
	case "i":
		if i, ok := s.instances[id]; ok {
			return i.tags, nil
		}
		return nil, notFound("InvalidInstanceID", "instance ID", id)
	case "sg":
		if g, ok := s.madeGroups[id]; ok {
			return g.tags, nil
		}
		return nil, notFound("InvalidGroup", "security group", id)
	case "key":
		for _, k := range s.keys {
			if k.id == id {
				return k.tags, nil
			}
		}
		return nil, notFound("InvalidKeyPair", "key pair", id)
	case "subnet":
		sub, err := s.subnet(id)
		if err != nil {
			return nil, err
		}
		return sub.Tags, nil
	case "vpc":
		if v, ok := s.vpcs[id]; ok {
			return v.Tags, nil
		}
		return nil, notFound("InvalidVpcID", "vpc ID", id)
	}
	return nil, refuse("InvalidID", "The ID '%s' is not valid", id)
}

func tagsFor(kind string, specs []tagSpecification) (map[string]string, error) {
	tags := map[string]string{}
	for _, spec := range specs {
		if spec.ResourceType != kind {
			return nil, refuse("InvalidParameterValue",
				"'%s' is not a valid taggable resource type for this operation.", spec.ResourceType)
		}
		if err := addTags(tags, spec.Tags); err != nil {
			return nil, err
		}
	}
	return tags, nil
}

// addTags adds tags, and refuses tags that break the rules.
func addTags(tags map[string]string, more []tag) error {
	for _, t := range more {
		switch {
		case strings.HasPrefix(strings.ToLower(t.Key), "aws:"):
			return refuse("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
		case len(t.Key) > 128:
			return refuse("InvalidParameterValue", "Tag key exceeds the maximum length of 128 characters")
		case len(t.Value) > 256:
			return refuse("InvalidParameterValue", "Tag value exceeds the maximum length of 256 characters")
		}
		tags[t.Key] = t.Value
	}
	if len(tags) > maxTags {
		return refuse("TagLimitExceeded", "The maximum number of Tags is %d.", maxTags)
	}
	return nil
}

// tagSet returns tags as EC2's answers list them, sorted by key.
func tagSet(tags map[string]string) set[tag] {
	var list set[tag]
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		list.Items = append(list.Items, tag{key, tags[key]})
	}
	return list
}
