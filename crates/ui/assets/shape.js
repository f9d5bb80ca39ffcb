// Reads parts of objects whose shape nobody checked: a custom resource may have anything under a well-known name.

export const isFields = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

export const fields = (value) => (isFields(value) ? value : {});

export const items = (value) => (Array.isArray(value) ? value.filter(isFields) : []);
